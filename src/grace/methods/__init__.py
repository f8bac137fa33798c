"""The methods: one file each, which reads like its paper's algorithm, and the steps they share."""
