"""What a run is made of: `TrainConfig`, presets, config files, and how these and a few settings become one config."""
