"""The version, in one place: the build reads it here, and so does everything else."""

__version__ = "0.1.0.dev0"
