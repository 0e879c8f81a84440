"""Routes, bodies, replies and everything else between a client and a job."""
