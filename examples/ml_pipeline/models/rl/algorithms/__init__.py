"""`ppo_trainer`: the document's trainer."""
