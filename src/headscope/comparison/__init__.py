"""Several choices, trained alike from the same seeds: what each learns, weighs and costs."""
