"""Envs for meta-RL: one env, many tasks. What an episode's task is shows in the rewards (in `Wind`: in how it moves),
never in an observation; who finds out soon earns more.

Every env has the hooks of `tasks.TaskEnv`: `sample_tasks(count)`, `reset_task(task)`, `get_task()`.
"""
