"""A model beside the one that is trained: judges ask it for verdicts, and the data generator for tasks.

client.py    `HelperModel`: limits, budget, cache, JSON by schema
chat.py      any OpenAI-compatible endpoint, or the in-process engine with a second model
answers.py   answers of earlier runs on disk
prompts.py   the instructions, English and Chinese, which a user may replace
quoting.py   text of others as data
"""

from astune.helper_model.client import Form, HelperModel, Usage, metered
from astune.helper_model.prompts import Prompts
from astune.helper_model.quoting import data, quoted

__all__ = ["Form", "HelperModel", "Prompts", "Usage", "data", "metered", "quoted"]
