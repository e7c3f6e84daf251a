"""The loop IR: tensor expressions and schedules in, loop nests out; checked by an interpreter."""
