"""CLINC150: sentences to a voice assistant in 150 intents, as 384 numbers of all-MiniLM-L6-v2.

18,000 sentences to learn from (120 a class) and 4,500 to ask with. Larson et al., EMNLP 2019,
CC BY 3.0.
"""

from __future__ import annotations

from pathlib import Path

from experiments.datasets.files import existing
from hashcade.data import LabelledItems, load_npz

FILE = "clinc150_minilm.npz"


def load_clinc150(folder: str | Path, split: str = "train") -> LabelledItems:
    """Load one part, ``"train"`` or ``"test"``; ``folder`` has the file :data:`FILE`."""
    return load_npz(existing(Path(folder) / FILE), split=split)
