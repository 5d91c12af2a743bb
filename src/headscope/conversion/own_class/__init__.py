"""The class of transformers for models that none of its own classes can express. An exported folder
contains the source of this class, so opening the folder needs no headscope."""
