import './styles/base.css'
import './styles/panes.css'
import './styles/episode.css'
import './styles/tokens.css'
import './styles/dashboard.css'
import './styles/overview.css'
import './styles/served.css'

import { render } from 'preact'

import { App } from './App'
import { Embedded, embeddedReport } from './data/embedded'
import { Server } from './data/server'
import type { EpisodeRow } from './data/types'
import { listenToKeys } from './state/commands'
import { followAddress, go } from './state/place'
import { startPreferences } from './state/preferences'
import { SourceContext } from './state/source'

/** A report of one episode opens on it. */
function theOnly(rows: EpisodeRow[]): string {
  return rows.length === 1 ? rows[0]!.episode_id : ''
}

startPreferences()
followAddress()
listenToKeys()
const report = embeddedReport()
if (report && report.rows.length > 0 && location.hash === '') go({ view: 'episodes', id: theOnly(report.rows) }, { replace: true })
render(
  <SourceContext.Provider value={report ? new Embedded(report) : new Server()}>
    <App />
  </SourceContext.Provider>,
  document.getElementById('app')!,
)
