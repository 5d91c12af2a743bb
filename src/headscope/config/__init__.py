"""The keys of all configurations, and the parts that they name with `_target_`."""
