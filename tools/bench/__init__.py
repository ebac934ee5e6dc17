"""`pfvm bench`: latency of a model on devices and other engines, each in a process of its own, in turns.

command.py      one run of the command           candidates.py   what is compared
process.py      a candidate's process, seen from outside         worker.py, engines.py   the process itself
turns.py        whose turn it is                 figures.py      median, spread, noise
training.py     training steps (--train)
optimizers/     other optimizers (--optimizers)  plans.py        schedulers (--plan)
tpu.py          cycles on TPUs (--tpu)
machine.py      where it ran                     report.py, plot.py   table and JSON; bar chart
"""
