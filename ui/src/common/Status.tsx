/** How a run or an episode stands, as a word with a mark: colour alone says nothing. */

import type { EpisodeStatus, Status } from '../data/types'
import { t } from '../text/translate'

const MARKS = { success: '✓', failed: '✕', truncated: '…', error: '!', running: '●', finished: '✓', interrupted: '‖', killed: '✕' }

export function RunStatus({ status }: { status: Status }) {
  return <Chip kind={status} word={t(`status_${status}`)} />
}

export function EpisodeOutcome({ status }: { status: EpisodeStatus }) {
  return <Chip kind={status} word={t(`episode_${status}`)} />
}

function Chip({ kind, word }: { kind: Status | EpisodeStatus; word: string }) {
  return (
    <span class={`chip is-${kind}`}>
      <span aria-hidden="true">{MARKS[kind]}</span> {word}
    </span>
  )
}
