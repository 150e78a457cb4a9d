"""Texts that instruct a judge, a grader or the next model rather than comment on an answer. Patterns find the usual
wording. Others get through: the gate has to catch their effect.
"""

from __future__ import annotations

import re
import unicodedata

_TAGS = range(0xE0000, 0xE0080)
"""Unicode's tag characters repeat ASCII, and are not seen."""
_PATTERNS = {
    "overrides instructions": r"\b(ignore|disregard|forget|override)\b.{0,40}\b(instructions?|rubrics?|criteria|rules|"
    r"prompts?|above|previous)\b",
    "asks for a score": r"\b(give|assign|award|rate|grade|score|mark)\b.{0,40}"
    r"\b(highest|full|maximum|perfect|top|best)\b.{0,20}\b(scores?|marks?|points?|ratings?|grades?)\b|"
    r"\b(scores?|ratings?|grades?|rewards?) ?(:|=|of|is) ?(10|100|5|1\.0)\b.{0,12}(\bof\b|/|\b)",
    "speaks to the judge": r"\b(you are|as|dear|attention|note to|hey) (a|an|the)? ?(\w+ ){0,4}(judge|grader|evaluator|"
    r"reward model|rater|annotator)\b|\bthe (judge|grader|evaluator|reward model) (must|should|has to|will)\b",
    "forges the chat": r"<\|?(im_start|im_end|system|assistant|endoftext|eot_id|start_header_id)\|?>|"
    r"</?tool_response>|\[/?INST\]|^ ?(system|assistant) ?:",
    "gives orders (zh)": r"忽略.{0,12}(指令|指示|规则|标准|以上|之前)|(给|打|评).{0,8}(满分|最高分|高分)|"
    r"作为.{0,6}(评委|裁判|评审|评分)",
}
_COMPILED = {name: re.compile(pattern, re.I | re.M) for name, pattern in _PATTERNS.items()}


def instructs(text: str) -> str | None:
    """Return the part of a text that instructs a judge, in a person's words; None if there is none."""
    if any(ord(character) in _TAGS for character in text):
        return "hides text in Unicode"
    seen = "".join(each for each in unicodedata.normalize("NFKC", text) if unicodedata.category(each) != "Cf")
    return next((name for name, pattern in _COMPILED.items() if pattern.search(seen)), None)
