"""A callback for Hugging Face's Trainer."""
from transformers import TrainerCallback

from .save import save_step


class SaveStep(TrainerCallback):
    """Save one optimizer step, counted from 1: ``Trainer(..., callbacks=[SaveStep("step")])``."""

    def __init__(self, directory: str, step: int = 1):
        self.directory, self.step, self.batch, self.hook = directory, step, [], None

    def on_step_begin(self, args, state, control, model=None, optimizer=None, **_):
        if state.global_step == self.step - 1:
            save_step(self.directory, model, optimizer)
            self.hook = model.register_forward_pre_hook(
                lambda model, args, inputs: self.batch.append(dict(inputs)), with_kwargs=True)

    def on_step_end(self, args, state, control, **_):
        control.should_log |= state.global_step in (self.step - 1, self.step)

    def on_log(self, args, state, control, logs, model=None, optimizer=None, **_):
        if self.hook and state.global_step == self.step and "loss" in logs:
            self.hook = self.hook.remove()
            save_step(self.directory, model, optimizer, self.batch, loss=logs["loss"], grad_norm=logs.get("grad_norm"),
                      clip=args.max_grad_norm, layout={"dp": args.world_size},
                      precision="autocast" if args.bf16 or args.fp16 else None)
