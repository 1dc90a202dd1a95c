"""Data far away: how fast shards arrive, and whether what arrives is what was asked for."""
