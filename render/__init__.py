"""Messages and media to token ids and features; tokens back to text. Never needs a GPU.

`server` serves it, `renderer` makes prompts, `media` loads and processes images, `derender` turns
tokens back into text and is imported by itself: it loads neither transformers nor torch.
"""
