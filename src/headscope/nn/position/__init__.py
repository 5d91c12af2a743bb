"""Position encodings: `absolute` are added to the embeddings, `rotary` rotates queries and keys,
and `biases` are added to the scores. `headscope.nn` exports all of them."""
