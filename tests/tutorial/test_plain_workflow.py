"""The calculator's agent once more without any agent framework: thirty lines of one's own."""

from __future__ import annotations

from tutorial_stage import Play

from astune.schema import Task
from astune.workflow import AstuneProxy, Workflow, WorkflowOutput

CONF = "example_calculator/calculator.yaml"
TASK = Task(task_id="sum", main_query="What is 49 + 15?", env_type="calculator", metadata={"answer": "64"})


class PlainCalculator(Workflow):
    async def execute(self, task: Task, proxy: AstuneProxy) -> WorkflowOutput | None:
        messages = [{"role": "system", "content": "Use <calc>."}, *proxy.init_messages[1:]]
        for _ in range(self.config.rollout.multi_turn.max_steps):
            reply = await proxy.achat(messages)
            observation, _, terminate, _ = await proxy.agym_step(reply)
            if terminate:
                break
            messages += [reply, {"role": "user", "content": observation}]
        return None


class SynchronousCalculator(Workflow):
    def execute(self, task: Task, proxy: AstuneProxy) -> WorkflowOutput | None:
        messages = [{"role": "system", "content": "Use <calc>."}, *proxy.init_messages[1:]]
        for turn in range(self.config.rollout.multi_turn.max_steps):
            reply = proxy.chat(messages)
            observation, reward, terminate, _ = proxy.gym_step(reply)
            if terminate:
                return WorkflowOutput(reward=reward, metrics={"turns": turn + 1})
            messages += [reply, {"role": "user", "content": observation}]
        return WorkflowOutput(reward=0.0)


async def test_a_plain_workflow_plays_the_same_episode(play: Play):
    replies = ["<calc>49+15</calc>", r"\boxed{64}"]
    for workflow in (PlainCalculator, SynchronousCalculator):
        group = await play(CONF, TASK, replies, workflow=workflow)
        assert [(e.status, e.raw_reward) for e in group.episodes] == [("success", 1.0)] * 2
        [timeline] = group.episodes[0].timelines
        assert [span.sampled for span in timeline.spans].count(True) == 2
