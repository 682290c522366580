"""Sample where a worker spends its time: imported only while the pool asks for a profile."""
