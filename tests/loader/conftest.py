from rlds_files import once, write_pair

# Three datasets of 15, 12 and 9 samples; those of ``saved_states.json``.
trio = once(lambda folder: list(write_pair(folder, a=[[7, 8]], b=[[4, 8]], c=[[9]])))
