"""Running algorithms on real data: levelled programs, inputs and references, and the executors of the core."""
