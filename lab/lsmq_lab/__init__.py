"""What measures and hurts: benchmarks, drills, the history checker, the simulated world, clusters of processes here."""
