"""A worker extension for a real vLLM that says it took weights and did not: the control of `test_e2e_vllm.py`.

What it does is written in the file that `ASTUNE_UNTRUE` names: `honest`, `nothing`, or `all but the head`.
"""

from __future__ import annotations

import os
from pathlib import Path

from astune_weights import TakesWeights


class Untrue(TakesWeights):
    def astune_take_weights(self, folder: str, name: str) -> dict[str, str]:
        how = Path(os.environ["ASTUNE_UNTRUE"]).read_text()
        if how == "honest":
            return super().astune_take_weights(folder, name)
        if how == "all but the head":
            self.model_runner.reload_weights(weights_path=folder)  # vLLM's own, which leaves a tied head as it was
        self.astune_holds = name
        return {"name": name}
