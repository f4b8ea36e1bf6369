"""`ppo_trainer`: trainer of the document."""
