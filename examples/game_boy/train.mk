# Document 004: `make train`, `make train-pure-rl`, `make train-parallel`, `make train-20k`. Each target has its own
# defaults. Variables on the command line or in the environment override them, for every target.
#
#   TRAIN_STEPS            total number of env steps
#   TRAIN_ENVS             number of parallel environments
#   TRAIN_EPISODE_LENGTH   maximum number of steps of an episode
#   TRAIN_UPDATE_EPOCHS    number of optimization passes over a batch of episodes
#   TRAIN_BATCH_SIZE       number of rows in a minibatch
#   TRAIN_OUTPUT_DIR       directory that contains one directory per run
#   TRAIN_ROM              ROM of a cartridge that you own; default: the built-in quest
#   TRAIN_GAME             game file of the cartridge; default: zelda.yaml
#   TRAIN_OBSERVATION      ram, screen or both
#   TRAIN_SEED
.PHONY: train train-pure-rl train-parallel train-20k

# (name, default)
train_flag = --$(1) $(if $(filter undefined,$(origin TRAIN_$(2))),$(3),'$(TRAIN_$(2))')
train_option = $(if $(TRAIN_$(2)),--$(1) '$(TRAIN_$(2))')
# (steps, envs, episode length, update epochs)
train_command = $(BIN)/python examples/game_boy/train.py $(call train_flag,steps,STEPS,$(1)) \
	$(call train_flag,envs,ENVS,$(2)) $(call train_flag,episode-length,EPISODE_LENGTH,$(3)) \
	$(call train_flag,update-epochs,UPDATE_EPOCHS,$(4)) $(call train_flag,batch-size,BATCH_SIZE,128) \
	$(call train_flag,output-dir,OUTPUT_DIR,training_runs) $(call train_option,rom,ROM) $(call train_option,game,GAME) \
	$(call train_option,observation,OBSERVATION) $(call train_option,seed,SEED)

train train-pure-rl: setup
	$(call train_command,100000,1,500,4)

train-parallel: setup
	$(call train_command,100000,2,500,4)

train-20k: setup
	$(call train_command,20000,2,750,6)
