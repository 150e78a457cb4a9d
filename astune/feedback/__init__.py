"""Users' conversations with a model, and their ratings of its answers.

interaction.py   one answer with its whole conversation, and one opinion of it
masking.py       personal data, taken out before anything is written
store.py         both in SQLite, each once by its content; what belongs to a user can be deleted
sessions.py      sessions of the store, for browsing
spans.py         interactions from traces: AgentScope, OpenTelemetry's GenAI conventions, OpenInference
trace_files.py   files that hold traces: AgentScope Studio's database, OTLP JSON, exports of Langfuse and MLflow
rating_files.py  ratings in CSV or JSON lines
implicit.py      implicit opinions: named rules over sessions
"""

from astune.feedback.implicit import implicit_ratings
from astune.feedback.interaction import Interaction, Rating
from astune.feedback.masking import Masker
from astune.feedback.rating_files import read_ratings
from astune.feedback.store import FeedbackStore, Opinion
from astune.feedback.trace_files import TraceFile, read_traces

__all__ = [
    "FeedbackStore",
    "Interaction",
    "Masker",
    "Opinion",
    "Rating",
    "TraceFile",
    "implicit_ratings",
    "read_ratings",
    "read_traces",
]
