"""What a running loader says about itself.

Not here: deciding anything from it (``controller``), showing it (``cli``).
"""
