"""A real ReActAgent, the calculator and a scripted model, from task to balanced books."""

from __future__ import annotations

from typing import Any

from agentscope.agent import ReActAgent
from agentscope.formatter import DashScopeChatFormatter, OpenAIChatFormatter
from agentscope.memory import InMemoryMemory
from agentscope.message import Msg

from astune import AgentScopeLearnProtocol, AstuneProxy, Task
from astune.config.schema import AstuneConfig
from astune.engine.scripted import ScriptedEngine
from astune.renderers import Renderer, conversations
from astune.rollout import RolloutPool

TASK = Task(task_id="sum", main_query="What is 49 + 15?", env_type="calculator", metadata={"answer": "64"})


class CalculatorAgent(AgentScopeLearnProtocol):
    formatter: type = OpenAIChatFormatter

    async def agentscope_execute(
        self, init_messages: list[dict[str, Any]], astune_proxy: AstuneProxy, config: AstuneConfig
    ) -> AstuneProxy:
        agent = ReActAgent(
            name="solver",
            sys_prompt="Use <calc>.",
            model=astune_proxy,
            formatter=self.formatter(),
            memory=InMemoryMemory(),
            toolkit=None,
        )
        agent.set_console_output_enabled(False)
        message, reply = Msg("user", init_messages[-1]["content"], role="user"), None
        for _ in range(config.astune.rollout.multi_turn.max_steps):
            reply = await agent(message)
            action = {"role": "assistant", "content": reply.content}
            observation, _, terminate, _ = astune_proxy.gym_step(action=action)
            if terminate or astune_proxy.context_overflow:
                break
            message = Msg("env", observation, role="user")
        assert reply is not None
        astune_proxy.update_judge_input_dictionary(final_answer=reply.get_text_content())
        return astune_proxy


class DashScopeCalculatorAgent(CalculatorAgent):
    formatter = DashScopeChatFormatter


class EnvironmentJudge:
    async def compute_reward(self, judge_input_dictionary: dict[str, Any]) -> tuple[float, bool]:
        reward = await judge_input_dictionary["env"].evaluate()
        return reward, reward == 1.0


async def run(renderer: Renderer, workflow: type, texts: list[str], **rollout: Any) -> Any:
    config = AstuneConfig.model_validate({"rollout": rollout})
    encode = renderer._template.encode  # type: ignore[attr-defined]
    engine = ScriptedEngine([encode(text) for text in texts])
    pool = RolloutPool(engine, renderer, workflow, EnvironmentJudge(), config)
    before = engine.stats()
    [group] = await pool.run_groups([TASK], step=1, split="train", num_repeat=2, temperature=1.0)
    return group, pool.balance([group], engine.stats() - before), engine


async def test_a_react_agent_solves_a_task_in_two_turns_and_every_token_is_accounted_for(renderer: Renderer) -> None:
    for workflow in (CalculatorAgent, DashScopeCalculatorAgent):
        group, balance, engine = await run(renderer, workflow, ["<calc>49+15</calc>", "\\boxed{64}"])
        assert group.dropped is None, group.dropped
        assert [episode.status for episode in group.episodes] == ["success", "success"]
        [timeline] = group.episodes[0].timelines
        assert renderer.decode(timeline.token_ids).endswith(
            "<|im_start|>assistant\n<calc>49+15</calc><|im_end|>\n"
            "<|im_start|>user\n<result>64</result><|im_end|>\n"
            "<|im_start|>assistant\n\\boxed{64}<|im_end|>"
        )
        assert [message["role"] for message in conversations(group.episodes[0].forest)[0]][-3:] == [
            "assistant",
            "user",
            "assistant",
        ]
        assert balance.difference == 0
        assert balance.trained == balance.sampled > 0
        assert not engine.open_sessions
