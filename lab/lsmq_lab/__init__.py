"""What measures and hurts: benchmarks, drills, the history checker, the simulation, clusters of processes here."""
