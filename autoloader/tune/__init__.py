"""The offline study: measures knob sets in child processes and saves the winner as a profile.

``measurement`` runs one loader in this process; ``trial`` runs that measurement in a child under
the RAM floor; ``search_space`` draws legal knobs; ``study`` drives Optuna; ``storage`` is where
studies are kept; ``finals`` measures start and finalists in turn; ``report`` shows and saves. Each
meets the next through one small interface, so a study can be run with a fake measurer and a trial
with a fake child.

Not here: the loader (``loader``), live control (``controller``), reading profiles (``profile``).
"""
