"""The page on which one types a text and sees what a model does with it, and its server."""
