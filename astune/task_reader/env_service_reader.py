"""Tasks that an environment brings: one for each id that it lists for a split.

The environment states what such a task asks when an episode begins; until then its id stands for it.
"""

from __future__ import annotations

from astune.config.imports import located
from astune.env_service.built_in import environment_class
from astune.env_service.handle import ENV_URL
from astune.schema import EnvError, Task, TaskReaderError
from astune.task_reader.reader import TaskReaderBase

LIST_TIMEOUT_S = 60.0


class TaskReaderEnvService(TaskReaderBase):
    """The splits of `task_reader.env_service`, from the service at `env_url` or from an environment in this process."""

    def training_tasks(self) -> list[Task]:
        return self._read(self.config.env_service.training_split)

    def validation_tasks(self) -> list[Task]:
        split = self.config.env_service.validation_split
        return [] if split is None else self._read(split)

    def _read(self, split: str) -> list[Task]:
        env = self.config.env_service
        if not env.env_type:
            raise TaskReaderError(
                "there is no environment to ask for tasks", hint="set task_reader.env_service.env_type"
            )
        task_ids = self._ids(split)
        if not task_ids:
            raise TaskReaderError(
                f"environment {env.env_type} has no task in split {split!r}",
                hint="name a split that it has in task_reader.env_service",
            )
        metadata = {ENV_URL: env.env_url} if env.env_url else {}
        return [
            Task(task_id=task_id, main_query=task_id, env_type=env.env_type, metadata=dict(metadata))
            for task_id in task_ids
        ]

    def _ids(self, split: str) -> list[str]:
        env = self.config.env_service
        try:
            if env.env_url:
                from astune.env_service.client import read_task_ids

                return read_task_ids(env.env_url, env.env_type, split, timeout_s=LIST_TIMEOUT_S)
            env_type = located(env.env_type, self.base_dir)
            return environment_class(env_type, asked_by="task_reader.env_service.env_type").get_query_list(split, {})
        except EnvError as cause:
            raise TaskReaderError(cause.message, hint=cause.hint) from cause
