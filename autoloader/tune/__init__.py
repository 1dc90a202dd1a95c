"""The offline study: measures sets of knobs on this host and saves the best as a profile.

``autoloader.tune --host-profile local_dev --ram-floor 5GB`` runs it. Optuna proposes; each trial is
a child process under the RAM floor; start and finalists are measured in turn, so that luck cannot
win. The only importer of Optuna.

Start here:
    ``offline``: the whole command: profile and mixture in, profile out.
    ``study``: asks Optuna, runs trials, prunes, ends.
    ``trial`` and ``measurement``: one trial in a child; one loader measured, with its trace.
    ``search_space.SearchSpace``: legal knobs of one pipeline on one host.
    ``bound``: the highest rate that the machine allows, and which resource limits it.

Never here: changes while a run goes on (``controller``).
"""
