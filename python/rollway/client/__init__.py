"""Client side of the engine: scheduler, coordinator, explorer, reader, synchronizer."""
