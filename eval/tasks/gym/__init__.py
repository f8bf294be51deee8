"""The tasks of reasoning-gym: their answers read with care, scored in processes of their own."""
