"""The runner of CUDA devices: slot tables on the device, steps as captured graphs, one step launched ahead."""
