"""Nim: two players take 1 to 3 of what is left in turns, and who takes the last one wins."""


class Nim:
    def reset(self, row: dict) -> tuple[str, str]:
        """Who begins, and what it is told."""
        self.left, self.players = int(row["left"]), ["white", "black"]
        return "white", f"{self.left}="

    def step(self, action: str) -> tuple[str, str, float | dict[str, float], bool]:
        """Whose turn it is then, what that player is told, the rewards, and whether the game is over."""
        acting, other = self.players
        self.players.reverse()
        taken = int(action) if action in ("1", "2", "3") else 0
        self.left -= taken
        if not taken or self.left < 0:
            return other, "", {acting: -1, other: 1}, True
        if not self.left:
            return other, "", {acting: 1, other: -1}, True
        return other, f"{self.left}=", 0, False
