"""A model beside the one that is trained: judges ask it for opinions, and tasks are made with it.

client.py    `HelperModel`: limits, budget, cache, JSON by schema
chat.py      who answers: any OpenAI-compatible endpoint, or our engine with a second model
answers.py   answers of earlier runs on disk
prompts.py   the instructions, English and Chinese, which a user may replace
quoting.py   text of others as data
"""

from astune.helper_model.client import HelperModel, Usage, metered
from astune.helper_model.prompts import Prompts
from astune.helper_model.quoting import data, quoted

__all__ = ["HelperModel", "Prompts", "Usage", "data", "metered", "quoted"]
