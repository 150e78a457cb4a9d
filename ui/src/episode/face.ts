/** What the chat and the token face have in common: they show one timeline, and know which message is at the top. */

import type { RefObject } from 'preact'

import type { Episode } from '../data/types'

export interface FaceCommands {
  goTo: (node: number) => void
  /** To the next message, or the previous one. */
  step: (by: 1 | -1) => void
}

export interface FaceProps {
  episode: Episode
  timeline: number
  /** The message to begin at; -1 for the timeline's beginning. */
  node: number
  onNode: (node: number) => void
  commands: RefObject<FaceCommands | null>
}
