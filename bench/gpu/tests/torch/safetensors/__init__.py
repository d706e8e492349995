# A stand-in, as torch.py beside it.
