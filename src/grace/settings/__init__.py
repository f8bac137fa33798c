"""Settings models, the registry of names, and packaged experiments; nothing here imports torch."""
