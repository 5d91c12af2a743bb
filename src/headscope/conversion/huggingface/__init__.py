"""Models of transformers: opens their folders, and writes folders that transformers opens."""
