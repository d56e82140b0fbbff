"""Hard devices: processes on a CPU that are held to what GPUs would refuse them."""
