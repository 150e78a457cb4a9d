/** One timeline's tokens, read by position: what each one is, and what is known of it. */

import type { Span, Tokens } from '../data/types'

export interface TokenFacts {
  index: number
  id: number
  text: string
  /** The token's bytes where it is a part of a character. */
  bytes: string | null
  /** The whole characters that it is a part of, and which part of how many. */
  character: { text: string; part: number; parts: number } | null
  span: Span
  loss: boolean
  grammar: boolean
  logprob: number | null
  trainerLogprob: number | null
  advantage: number | null
}

export class Columns {
  readonly length: number
  readonly spans: Span[]
  private readonly starts: number[]
  /** How many sampled tokens, and sampled spans, stand before each span. */
  private readonly sampledBefore: number[] = []
  private readonly samplesBefore: number[] = []
  private readonly lossMask: Uint8Array
  private readonly characterOf: Map<number, [number, number, string]> = new Map()

  constructor(private readonly tokens: Tokens) {
    this.length = tokens.length
    this.spans = tokens.spans
    this.starts = tokens.spans.map((span) => span.start)
    let sampled = 0
    let samples = 0
    for (const span of tokens.spans) {
      this.sampledBefore.push(sampled)
      this.samplesBefore.push(samples)
      if (span.sampled) {
        sampled += span.end - span.start
        samples += 1
      }
    }
    this.lossMask = expanded(tokens.loss, tokens.length)
    for (const run of tokens.characters) for (let at = run[0]; at < run[1]; at++) this.characterOf.set(at, run)
  }

  id(index: number): number {
    return this.tokens.ids[index] ?? -1
  }

  get ids(): number[] {
    return this.tokens.ids
  }

  hasLoss(index: number): boolean {
    return this.lossMask[index] === 1
  }

  spanIndex(index: number): number {
    return lastAtMost(this.starts, index)
  }

  span(index: number): Span {
    return this.spans[this.spanIndex(index)]!
  }

  /** What is shown for the token: its text, or, for the first part of a character, the character. */
  shown(index: number): string {
    const run = this.characterOf.get(index)
    if (run) return run[0] === index ? run[2] : ''
    return this.text(index)
  }

  isPart(index: number): boolean {
    return this.characterOf.has(index)
  }

  text(index: number): string {
    return this.tokens.texts[String(this.id(index))] ?? ''
  }

  /** Whether it is known how the token reads. */
  hasText(index: number): boolean {
    return String(this.id(index)) in this.tokens.texts
  }

  logprob(index: number): number | null {
    return this.sampledValue(index, this.tokens.logprobs)
  }

  trainerLogprob(index: number): number | null {
    return this.sampledValue(index, this.tokens.trainer_logprobs)
  }

  advantage(index: number): number | null {
    const at = this.spanIndex(index)
    if (!this.spans[at]?.sampled) return null
    return this.tokens.advantages?.[this.samplesBefore[at]!] ?? null
  }

  /** Why nothing of the timeline takes part in the loss; null where something does, or messages differ in why. */
  get whyWithoutLoss(): string | null {
    const reasons = new Set(this.spans.filter((span) => span.sampled).map((span) => span.mask_reason))
    return this.tokens.loss.length > 0 || reasons.size !== 1 ? null : [...reasons][0]!
  }

  get knowsTrainer(): boolean {
    return this.tokens.trainer_logprobs !== null
  }

  facts(index: number): TokenFacts {
    const at = this.spanIndex(index)
    const run = this.characterOf.get(index)
    return {
      index,
      id: this.id(index),
      text: this.text(index),
      bytes: this.tokens.bytes[String(this.id(index))] ?? null,
      character: run ? { text: run[2], part: index - run[0] + 1, parts: run[1] - run[0] } : null,
      span: this.spans[at]!,
      loss: this.hasLoss(index),
      grammar: this.tokens.grammar[at] ?? false,
      logprob: this.logprob(index),
      trainerLogprob: this.trainerLogprob(index),
      advantage: this.advantage(index),
    }
  }

  private sampledValue(index: number, values: (number | null)[] | null): number | null {
    const at = this.spanIndex(index)
    const span = this.spans[at]
    if (!span?.sampled || values === null) return null
    return values[this.sampledBefore[at]! + index - span.start] ?? null
  }
}

/** Run-length pairs [start, end) as one flag for each position. */
export function expanded(runs: [number, number][], length: number): Uint8Array {
  const flags = new Uint8Array(length)
  for (const [start, end] of runs) flags.fill(1, start, end)
  return flags
}

/** The last of ascending numbers that is no greater than `value`; 0 where none is. */
export function lastAtMost(numbers: number[], value: number): number {
  let low = 0
  let high = numbers.length - 1
  while (low < high) {
    const middle = (low + high + 1) >> 1
    if (numbers[middle]! <= value) low = middle
    else high = middle - 1
  }
  return low
}
