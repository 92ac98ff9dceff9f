//! Devices: lanes, and memory for batches.
