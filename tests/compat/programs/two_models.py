"""Two models trained against each other, each with its own optimizer."""

import torch
from outcome import begin, save
from torch import nn


def main() -> None:
    out = begin()
    maker = nn.Sequential(nn.Linear(64, 512), nn.ReLU(inplace=True), nn.Linear(512, 512))
    judge = nn.Sequential(nn.Linear(512, 512), nn.LeakyReLU(0.2, inplace=True), nn.Linear(512, 1))
    make_step = torch.optim.Adam(maker.parameters(), lr=2e-4, betas=(0.5, 0.999))
    judge_step = torch.optim.RMSprop(judge.parameters(), lr=1e-4)
    score = nn.BCEWithLogitsLoss()
    ones, zeros = torch.ones(256, 1), torch.zeros(256, 1)

    losses = []
    for _ in range(7):
        real, made = torch.rand(256, 512), maker(torch.randn(256, 64))
        judge_step.zero_grad()
        judged = score(judge(real), ones) + score(judge(made.detach()), zeros)
        judged.backward()
        judge_step.step()
        make_step.zero_grad()
        fooled = score(judge(made), ones)
        fooled.backward()
        make_step.step()
        losses += [judged.item(), fooled.item()]
    save(out, losses, maker, judge)


if __name__ == "__main__":
    main()
