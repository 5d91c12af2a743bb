"""The keys of all configurations, and the parts that they name with `_target_`.

Hydra composes the files in conf/ and the command line to plain data. `parse` checks it against the
dataclasses of `training.py` or the arguments of a script's function, and against the constructors
of the parts. `build_part` calls the constructor of a part.
"""
