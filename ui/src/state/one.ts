/** Work that is never under way twice: whoever asks for it meanwhile has it done once more, after it. */
export class OneAtATime {
  private isBusy = false
  private isWanted = false

  constructor(private readonly work: () => Promise<void>) {}

  ask(): void {
    this.isWanted = true
    if (!this.isBusy) void this.run()
  }

  private async run(): Promise<void> {
    this.isBusy = true
    while (this.isWanted) {
      this.isWanted = false
      await this.work()
    }
    this.isBusy = false
  }
}
