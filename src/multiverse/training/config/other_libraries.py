"""Names that other libraries have for settings."""

from __future__ import annotations

SYNONYMS = {
    "num_envs": ("n_envs",),
    "env_steps": ("total_timesteps", "timesteps"),
    "episodes": ("num_episodes",),
    "learning_rate": ("lr",),
    "epochs": ("n_epochs", "update_epochs"),
    "steps_per_env": ("n_steps", "num_steps", "train_freq"),
    "batch_size": ("minibatch_size",),
    "entropy_coef": ("ent_coef",),
    "value_coef": ("vf_coef",),
    "clip_range": ("clip_coef",),
    "value_clip_range": ("clip_range_vf",),
    "network": ("features_extractor_class",),
    "network_kwargs": ("features_extractor_kwargs",),
    "normalize_advantages": ("normalize_advantage", "norm_adv"),
    "hidden_sizes": ("net_arch",),
    "share_features": ("share_features_extractor",),
    "memory_size": ("lstm_hidden_size",),
    "workers": ("num_workers",),
    "start_method": ("parallel_start_method",),
    "updates_per_step": ("utd_ratio",),
    "action_noise": ("noise_std",),
    "evaluate_every": ("eval_every", "eval_freq"),
    "evaluation_episodes": ("n_eval_episodes",),
    "evaluation_envs": ("n_eval_envs",),
}
"""Names of our settings in other libraries: flags and arguments in Python take these too."""

EQUIVALENTS = {
    "callback": "hooks=[…] in Python (docs/training.md, Hooks)",
    "eval_env": "evaluations make their own envs; see evaluate_every, evaluation_episodes and evaluation_opponent",
    "log_interval": "log_every, in env steps",
    "monitor_dir": "every run keeps episodes.jsonl in its directory (run_dir)",
    "policy": "networks follow from the spaces; hidden_sizes, activation and memory change them",
    "policy_kwargs": "separate settings: hidden_sizes (net_arch), activation, share_features, ortho_init, memory, "
    "network (features_extractor_class), network_kwargs",
    "progress_bar": "shown by default; progress=False in Python, --quiet in a shell",
    "reset_num_timesteps": "mv.resume or `multiverse resume` to train further, init_from to begin with a run's weights",
    "tb_log_name": "run_dir",
    "tensorboard_log": "tensorboard=True in Python, --tensorboard in a shell; it is written to the run's directory",
    "vec_env_cls": "executor",
    "verbose": "progress=False in Python, --quiet in a shell",
    "wrapper_class": "wrappers",
}
"""Replacements for arguments of Stable-Baselines3 without a setting that corresponds to them."""


def equivalent(name: str) -> str:
    """What to use here for an argument of Stable-Baselines3; '' for other names."""
    return f"What to use instead: {EQUIVALENTS[name]}" if name in EQUIVALENTS else ""
